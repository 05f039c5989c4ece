//! The settings of a stream, and their checks.

use crate::integrate::Element;
use crate::packet::TIME_MAX;
use crate::ring::{Deal, Pressure, Shape};
use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr};

/// `struct stream_config`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub(crate) struct Config {
    pub stations: u32,
    pub station_first: u32,
    pub subbands: u32,
    pub sample_bytes: u32,
    pub packet_samples: u32,
    pub block_packets: u32,
    pub slots: u32,
    pub buffer_ms: u32,
    pub sample_rate: f64,
    pub block_first: u64,
    pub block_count: u64,
    pub ranks: u32,
    pub deal: u32,
    pub pressure: u32,
    pub deadline_ms: u32,
    pub silence_ms: u32,
    pub tag: u32,
    pub input: u32,
    pub port: u32,
    pub ports: u32,
    pub receive_bytes: u32,
    pub integrate: u32,
    pub element: u32,
    pub groups_open: u32,
    pub reserved: u32,
    pub address: [u8; 64],
}

/// Where packets come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Input {
    Udp,
    TcpListen,
    TcpConnect,
}

/// The most bytes of samples in a datagram; with the header this is UDP's limit.
const UDP_BYTES_MAX: u64 = 65_507 - crate::packet::HEADER_BYTES as u64;
const STATIONS_MAX: u32 = 1024;
const PACKET_BYTES_MAX: u64 = 16 << 20;
/// Packets of a block, of all stations: `present` has a bit for each.
const BLOCK_PACKETS_MAX: u64 = 8 << 20;
const BLOCK_BYTES_MAX: u64 = 1 << 30;
const SLOTS_MAX: u64 = 65_536;
const RANKS_MAX: u32 = 65_536;
const PORTS_MAX: u32 = 64;
const INTEGRATE_MAX: u32 = 1 << 20;

fn within(value: u64, least: u64, most: u64) -> Result<(), c_int> {
    if (least..=most).contains(&value) { Ok(()) } else { Err(libc::EINVAL) }
}

impl Config {
    /// Checks all settings and replaces 0 by the defaults. `EINVAL` if a setting is not possible.
    pub(crate) fn complete(mut self) -> Result<Config, c_int> {
        self.ports = self.ports.max(1);
        self.integrate = self.integrate.max(1);
        if self.groups_open == 0 {
            self.groups_open = 4;
        }
        if self.receive_bytes == 0 {
            self.receive_bytes = 64 << 20;
        }
        within(u64::from(self.stations), 1, u64::from(STATIONS_MAX))?;
        within(u64::from(self.station_first), 0, u64::from(65_536 - self.stations))?;
        let packet = [self.subbands, self.sample_bytes, self.packet_samples];
        let packet = packet.iter().try_fold(1u64, |bytes, &factor| bytes.checked_mul(factor.into()));
        let input = self.input()?;
        let packet_max = if input == Input::Udp { UDP_BYTES_MAX } else { PACKET_BYTES_MAX };
        within(packet.ok_or(libc::EINVAL)?, 1, packet_max)?;
        within(u64::from(self.block_packets), 1, BLOCK_PACKETS_MAX)?;
        within(u64::from(self.block_packets) * u64::from(self.stations), 1, BLOCK_PACKETS_MAX)?;
        within(self.block_bytes(), 1, BLOCK_BYTES_MAX)?;
        within(u64::from(self.ranks), 1, u64::from(RANKS_MAX))?;
        within(u64::from(self.ports), 1, u64::from(PORTS_MAX))?;
        within(u64::from(self.port), 0, 65_536 - u64::from(self.ports))?;
        within(u64::from(self.integrate), 1, u64::from(INTEGRATE_MAX))?;
        within(u64::from(self.groups_open), 1, 1024)?;
        if self.slots == 0 {
            let seconds = f64::from(self.buffer_ms) / 1000.0;
            let samples = f64::from(self.packet_samples) * f64::from(self.block_packets);
            let slots = (seconds * self.sample_rate / samples).ceil();
            self.slots = if slots.is_finite() { slots.clamp(0.0, 1e9) as u32 } else { 0 };
        }
        within(u64::from(self.slots), 2, SLOTS_MAX)?;
        // No packet can have a later time.
        let first_max = TIME_MAX / self.block_samples();
        if self.block_first != u64::MAX {
            within(self.block_first, 0, first_max)?;
        }
        let is_tcp = input != Input::Udp;
        if Element::from_number(self.element).is_none() || (self.pressure()? == Pressure::Wait && !is_tcp) {
            return Err(libc::EINVAL);
        }
        self.deal()?;
        self.address()?;
        Ok(self)
    }

    pub(crate) fn input(&self) -> Result<Input, c_int> {
        match self.input {
            0 => Ok(Input::Udp),
            1 => Ok(Input::TcpListen),
            2 => Ok(Input::TcpConnect),
            _ => Err(libc::EINVAL),
        }
    }

    fn deal(&self) -> Result<Deal, c_int> {
        match self.deal {
            0 => Ok(Deal::Turns),
            1 => Ok(Deal::Free),
            _ => Err(libc::EINVAL),
        }
    }

    pub(crate) fn pressure(&self) -> Result<Pressure, c_int> {
        match self.pressure {
            0 => Ok(Pressure::DropOldest),
            1 => Ok(Pressure::Wait),
            _ => Err(libc::EINVAL),
        }
    }

    /// Where to listen, or to connect to.
    pub(crate) fn address(&self) -> Result<IpAddr, c_int> {
        let text = self.address.split(|byte| *byte == 0).next().unwrap_or_default();
        if text.is_empty() {
            return Ok(IpAddr::V4(Ipv4Addr::LOCALHOST));
        }
        std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).ok_or(libc::EINVAL)
    }

    /// Of the samples of a packet.
    pub(crate) fn packet_bytes(&self) -> u64 {
        u64::from(self.subbands) * u64::from(self.sample_bytes) * u64::from(self.packet_samples)
    }

    pub(crate) fn block_bytes(&self) -> u64 {
        let packets = u64::from(self.stations) * u64::from(self.block_packets);
        self.packet_bytes().saturating_mul(packets)
    }

    /// Times in a block.
    pub(crate) fn block_samples(&self) -> u64 {
        u64::from(self.packet_samples) * u64::from(self.block_packets)
    }

    /// From the beginning of one slot to that of the next.
    pub(crate) fn slot_bytes(&self) -> u64 {
        self.block_bytes().next_multiple_of(4096)
    }

    pub(crate) fn shape(&self) -> Result<Shape, c_int> {
        Ok(Shape {
            stations: self.stations,
            packets: self.block_packets,
            slots: self.slots,
            ranks: self.ranks,
            deal: self.deal()?,
            pressure: self.pressure()?,
            deadline_ns: u64::from(self.deadline_ms) * 1_000_000,
            silence_ns: u64::from(self.silence_ms) * 1_000_000,
            first: (self.block_first != u64::MAX).then_some(self.block_first),
            count: (self.block_count != u64::MAX).then_some(self.block_count),
        })
    }
}
