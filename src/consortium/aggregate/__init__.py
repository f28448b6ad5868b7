"""From many updates to one: sums that give the same bits on every machine."""
