"""What a training needs, what is free, and what helps when memory runs out."""
