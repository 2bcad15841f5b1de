"""Raw full-stage logs, one row for each request and item, and their way into impressions."""
