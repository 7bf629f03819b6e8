"""The configuration: metasched.toml and the policy file, read and checked; it opens no database."""
