"""What a service records: samples of what it served, and events that clients report. Joining makes a log of both."""
