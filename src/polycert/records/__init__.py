"""What was found about each sample, as tables and files."""
