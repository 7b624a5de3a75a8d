"""Events as numpy columns, and the functions that sort and search these columns."""
