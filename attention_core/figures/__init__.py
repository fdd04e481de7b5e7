"""Pictures of attention: numpy in, ``plotly.graph_objects.Figure`` out.

Labels, words and colours are arguments; nothing here knows torch, a model or a screen.
"""
