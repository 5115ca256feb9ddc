"""The part of it that the peer uses."""
