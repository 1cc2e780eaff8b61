"""Environments with unlimited generated tasks. Index, split and settings determine a task, in every process."""
