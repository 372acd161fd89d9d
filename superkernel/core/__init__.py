"""What everybody shares: errors and warnings, element types, tensors, graphs, bodies, options, settings, files."""
