//! Rows that come and go: messages, frames on their way. A row's number is its place, and a place
//! that was given up is used again.

use std::ops::{Index, IndexMut};

pub(crate) struct Slots<T> {
    rows: Vec<T>,
    unused: Vec<u32>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Slots { rows: Vec::new(), unused: Vec::new() }
    }
}

impl<T> Slots<T> {
    /// The new row's number.
    pub(crate) fn put(&mut self, row: T) -> u32 {
        match self.unused.pop() {
            Some(number) => {
                self.rows[number as usize] = row;
                number
            }
            None => {
                self.rows.push(row);
                self.rows.len() as u32 - 1
            }
        }
    }

    /// The row's number may be another one's from now on; the row stays until then.
    pub(crate) fn give_up(&mut self, number: u32) -> &mut T {
        self.unused.push(number);
        &mut self.rows[number as usize]
    }

    pub(crate) fn get(&self, number: u32) -> Option<&T> {
        self.rows.get(number as usize)
    }
}

impl<T> Index<u32> for Slots<T> {
    type Output = T;

    fn index(&self, number: u32) -> &T {
        &self.rows[number as usize]
    }
}

impl<T> IndexMut<u32> for Slots<T> {
    fn index_mut(&mut self, number: u32) -> &mut T {
        &mut self.rows[number as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::Slots;

    #[test]
    fn places_are_used_again_the_last_first() {
        let mut slots = Slots::default();
        assert_eq!(["a", "b", "c"].map(|row| slots.put(row)), [0, 1, 2]);
        assert_eq!(*slots.give_up(0), "a");
        slots.give_up(1);
        assert_eq!(["d", "e", "f"].map(|row| slots.put(row)), [1, 0, 3]);
        slots[2] = "g";
        assert_eq!([0, 1, 2, 3].map(|number| slots[number]), ["e", "d", "g", "f"]);
        assert_eq!((slots.get(3), slots.get(4)), (Some(&"f"), None));
    }
}
