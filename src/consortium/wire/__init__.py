"""What goes between coordinator, sites and operators: tokens, signatures, messages."""
