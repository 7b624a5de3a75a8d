"""The hold service step by step beside the law: each segment of its threads is a step of the law, or it fails."""
