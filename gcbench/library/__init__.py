"""What `import gcbench` offers to scripts and notebooks."""
