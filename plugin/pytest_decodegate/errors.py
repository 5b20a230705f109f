"""What can go wrong, drawn once.

DecodegateError
├── BadInput      an option, marker, ini value, file or environment that the user can mend
├── GangError     the ranks could not do what they were asked
│   ├── RankRaised   one or more ranks raised an exception
│   ├── RankDied     a rank, or torchrun above it, is gone
│   └── RankHung     a rank did not answer before its deadline
└── ServerError   the inference server did not start, died, or broke the protocol
    └── ServerHung   it was silent past its deadline
"""


class DecodegateError(Exception):
    """Base of every error that decodegate raises on purpose."""


class BadInput(DecodegateError):
    """The user gave something unusable; the message names it and says what to do."""


class GangError(DecodegateError):
    """A gang of ranks could not do what it was asked."""


class RankRaised(GangError):
    """One or more ranks raised; the earliest is shown as the cause."""


class RankDied(GangError):
    """A rank, or the torchrun above it, ended without answering."""


class RankHung(GangError):
    """A rank stayed silent past its deadline; the message holds its last stack."""


class ServerError(DecodegateError):
    """The inference server failed; the message quotes the end of its log."""


class ServerHung(ServerError):
    """The inference server did not send a token, or a page, before a deadline."""
