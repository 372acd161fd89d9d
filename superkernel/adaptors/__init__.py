"""Ways in for code that was written for other libraries: Python functions over arrays, ONNX Runtime's sessions, the
standard's interface of backends."""
