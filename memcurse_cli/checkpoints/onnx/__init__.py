"""ONNX models: their graphs and the tensors that these hold."""
