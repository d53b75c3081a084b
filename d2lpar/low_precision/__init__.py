"""LeNet's inference in float32, bfloat16, float16 and INT8: accuracy, speed, bytes."""
