"""What several tests need: builders and misbehaving peers. Nothing here imports a test."""
