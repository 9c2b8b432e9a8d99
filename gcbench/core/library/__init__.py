"""The functions that `import gcbench` offers to scripts and notebooks."""
