"""Small scripts that the tests run as real ranks."""
