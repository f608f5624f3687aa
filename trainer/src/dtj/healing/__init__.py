"""How a run survives the loss of a rank: verbs are repeated or skipped, a survivor hands over its state."""
