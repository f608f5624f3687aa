"""What a job does and did: its state, logs, Events and stacks, as text, HTML or a picture."""
