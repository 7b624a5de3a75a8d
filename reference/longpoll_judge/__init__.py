"""The judge: checks a recorded history of any broker, on Spark or in one process. It never imports the broker."""
