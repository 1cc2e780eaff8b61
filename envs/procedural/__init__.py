"""Generate unlimited tasks; index and split alone determine each task, in every process."""
