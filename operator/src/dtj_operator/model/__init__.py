"""The facts that decisions rest on, as frozen objects: they import nothing else of the operator."""
