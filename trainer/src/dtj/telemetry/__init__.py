"""What the run says about itself: to people, and to the agent."""
