"""One question a module: each looks at a snapshot and returns a verdict, or None."""
