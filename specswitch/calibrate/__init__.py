"""From measured decode steps to a profile, and what the profile says."""
