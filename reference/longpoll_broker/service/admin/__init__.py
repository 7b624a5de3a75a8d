"""What clients and operators ask and change beside messages."""
