//! Frames: the messages of the frames service.

pub mod messages;
mod messages_codec;
