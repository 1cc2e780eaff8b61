"""What every benchmark says of where it ran, and tables that grow by cells."""
