"""The judge: weighs a recorded history of any broker on Spark. It never imports the broker."""
