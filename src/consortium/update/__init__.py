"""What happens to an update on its way out of a site: stages on blocks of rows."""
