"""What comes back from a service: its samples and the events of users, joined to an impression log."""
