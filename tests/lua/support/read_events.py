"""Reads a TensorBoard event file with nothing of ours: prints one line an event.

step tag=value …, or the version, or 'start' of a session. Checksums are compared."""
import struct
import sys


def crc32c(data):
    c = 0xFFFFFFFF
    for byte in data:
        c ^= byte
        for _ in range(8):
            c = (c >> 1) ^ (0x82F63B78 if c & 1 else 0)
    return c ^ 0xFFFFFFFF


def masked(data):
    c = crc32c(data)
    return (((c >> 15) | (c << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at


def fields(data):
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = varint(data, at)
        elif kind == 1:
            value, at = struct.unpack('<d', data[at:at + 8])[0], at + 8
        elif kind == 5:
            value, at = struct.unpack('<f', data[at:at + 4])[0], at + 4
        else:
            assert kind == 2, kind
            size, at = varint(data, at)
            value, at = data[at:at + size], at + size
        yield key >> 3, value


def main(path):
    data, at = open(path, 'rb').read(), 0
    while at < len(data):
        length, crc = struct.unpack('<QI', data[at:at + 12])
        assert masked(data[at:at + 8]) == crc, 'checksum of a length'
        body = data[at + 12:at + 12 + length]
        assert masked(body) == struct.unpack('<I', data[at + 12 + length:at + 16 + length])[0]
        at += 16 + length
        event = dict(fields(body))
        assert abs(event[1] - 2e9) < 1e9, event[1]
        if 3 in event:
            print(event[3].decode())
        elif 7 in event:
            print(event[2], 'start', dict(fields(event[7]))[1])
        else:
            values = []
            for _, entry in fields(event[5]):
                scalar = dict(fields(entry))
                values.append('%s=%.9g' % (scalar[1].decode(), scalar[2]))
            print(event[2], ' '.join(values))


main(sys.argv[1])
