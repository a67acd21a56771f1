"""Reports of studies, runs and histories: HTML, Markdown, LaTeX and pictures.

Nothing heavy is imported here, and a history of a real federation needs neither PyTorch nor pydantic to be drawn.
"""
