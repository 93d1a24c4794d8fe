//! The images, with a real Docker engine.
