"""Killing what runs a job, again and again, and comparing what it comes to."""
