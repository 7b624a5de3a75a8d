"""Races messages against waiting pulls over the wire, at any RocketMQ broker."""
