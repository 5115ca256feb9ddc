"""Stands in for flash-attn-4 beside the module that stands in for PyTorch."""
