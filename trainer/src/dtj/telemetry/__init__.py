"""What the run says about itself: to the other ranks, to people, to the agent."""
