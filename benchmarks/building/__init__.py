"""What a build costs: embedding beside a bare loop, the rest of it by entries, memory as it grows, and more workers."""
