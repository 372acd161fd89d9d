"""The accelerator as a backend: programs for its simulator and for an emulator of its harts."""
