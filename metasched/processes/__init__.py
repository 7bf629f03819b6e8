"""Child processes of metasched: commands, confined code, and messages to them."""
