"""The operator's page: one document, one script, one style sheet, and a stream of snapshots."""
