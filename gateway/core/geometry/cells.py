"""Cells and states: what one layer keeps on one tensor-parallel rank, in bytes.

A *cell* is one cached position of one layer. How it falls on a rank is its shard: heads are divided, and where there are
fewer heads than ranks each rank keeps one; latent and indexer rows are replicated, whole on every rank; states are split.
"""

from dataclasses import dataclass
from typing import Final, Protocol

from gateway.core.geometry.precision import ITEM_BYTES, KvDtype
from gateway.core.geometry.rounding import round_up

_SCALED_VALUES: Final = 128  # values of an fp8 latent or indexer row that share one 4-byte scale


class ShardProblem(ValueError):
    """The layers cannot be divided over so many ranks; no engine would start. One sentence for the operator."""


class Cell(Protocol):
    """One cached position of one layer."""

    def cell_bytes(self, dtype: KvDtype, tp: int) -> int:
        """Bytes on one rank of `tp`. Raises ShardProblem, and ValueError where the layer has no such dtype."""
        ...


@dataclass(frozen=True, slots=True)
class HeadCell:
    """Keys and values of `heads` KV heads; their widths may differ."""

    heads: int
    k_dim: int
    v_dim: int

    def cell_bytes(self, dtype: KvDtype, tp: int) -> int:
        if self.heads >= tp and self.heads % tp:
            raise ShardProblem(f"{self.heads} KV heads cannot be divided over {tp} ranks: no engine starts so")
        if self.heads < tp and tp % self.heads:
            raise ShardProblem(f"{tp} ranks cannot share {self.heads} KV heads evenly: no engine starts so")
        if dtype.name.endswith("_ds_mla"):
            raise ValueError(f"{dtype.name} is a layout of latent rows, and these layers keep heads: say fp8 or bf16")
        heads = max(1, self.heads // tp)
        return dtype.row_bytes(heads, self.k_dim) + dtype.row_bytes(heads, self.v_dim)


@dataclass(frozen=True, slots=True)
class LatentCell:
    """One compressed row in place of keys and values (MLA), whole on every rank.

    heads, nope_dim, v_dim: of the keys and values that it stands for, where the config says them; 0: unknown.
    """

    rank: int
    rope_dim: int
    heads: int = 0
    nope_dim: int = 0
    v_dim: int = 0

    def decompressed(self, *, padded: bool) -> "HeadCell | None":
        """Keys and values themselves, for engines that keep those; None where the config does not say their sizes.

        padded: values are as wide as keys.
        """
        if not (self.heads and self.nope_dim and self.v_dim):
            return None
        k_dim = self.nope_dim + self.rope_dim
        width = max(k_dim, self.v_dim)
        return HeadCell(self.heads, width, width) if padded else HeadCell(self.heads, k_dim, self.v_dim)

    def cell_bytes(self, dtype: KvDtype, tp: int) -> int:
        match dtype.name:
            case "fp8_ds_mla":  # fp8 latent, its scales, bf16 rope: 656 bytes for 512 + 64
                return self.rank + self.rank // _SCALED_VALUES * 4 + 2 * self.rope_dim
            case "nvfp4_ds_mla":  # 4-bit latent, a scale for 16 values, fp8 rope: 352 bytes for 512 + 64
                return self.rank // 2 + self.rank // 16 + self.rope_dim
            case "nvfp4" | "fp8_per_token_head" | "int8_per_token_head":
                raise ValueError(
                    f"{dtype.name} is a layout of heads, and these layers keep latent rows: say fp8 or nvfp4_ds_mla"
                )
            case _:
                return dtype.row_bytes(1, self.rank + self.rope_dim)


@dataclass(frozen=True, slots=True)
class CompressedCell:
    """A row of compressed attention (DeepSeek V4): one vector that is key and value, whole on every rank."""

    dim: int
    rope_dim: int

    def cell_bytes(self, dtype: KvDtype, tp: int) -> int:
        if dtype.name in ("fp8", "fp8_ds_mla"):
            nope = self.dim - self.rope_dim
            return nope + 2 * self.rope_dim + round_up(nope // 64, 8)  # a scale byte for 64 values, padded
        return dtype.row_bytes(1, self.dim)


@dataclass(frozen=True, slots=True)
class IndexerCell:
    """A key of a sparse indexer: fp8 with one 4-byte scale for 128 values, whatever the KV dtype; on every rank."""

    dim: int

    def cell_bytes(self, dtype: KvDtype, tp: int) -> int:
        return self.dim + self.dim // _SCALED_VALUES * 4


@dataclass(frozen=True, slots=True)
class KeyCell:
    """A single key without a value, in the KV dtype, on every rank."""

    dim: int

    def cell_bytes(self, dtype: KvDtype, tp: int) -> int:
        return dtype.row_bytes(1, self.dim)


@dataclass(frozen=True, slots=True)
class GivenCell:
    """A cell whose bytes on one rank the operator has given."""

    size_bytes: int

    def cell_bytes(self, dtype: KvDtype, tp: int) -> int:
        return self.size_bytes


@dataclass(frozen=True, slots=True)
class State:
    """What a layer keeps for one sequence whatever its length, split over the ranks.

    conv_dim x conv_rows numbers of the model's own dtype, one row more for each speculated token; `recurrent` numbers of
    `state_dtype` (a name of ITEM_BYTES; None: the model's own). conv_groups: values of conv_dim that belong to groups of
    state (Mamba 2); where they cannot be divided over the ranks, each rank keeps its own.
    """

    conv_dim: int
    conv_rows: int
    recurrent: int
    state_dtype: str | None = None
    conv_groups: int = 0
    group_values: int = 0
    given_bytes: int | None = None

    def state_bytes(self, *, model_bytes: int, tp: int, speculated: int = 0) -> int:
        """Bytes on one rank. model_bytes: of one number of the model's dtype. Raises ShardProblem."""
        if self.given_bytes is not None:
            return self.given_bytes
        conv_dim = self.conv_dim
        if self.conv_groups and self.conv_groups % tp:
            conv_dim += max(tp - self.conv_groups, 0) * self.group_values
        if conv_dim % tp or self.recurrent % tp or (self.conv_groups > tp and self.conv_groups % tp):
            raise ShardProblem(f"the recurrent state cannot be divided over {tp} ranks: no engine starts so")
        item = model_bytes if self.state_dtype is None else ITEM_BYTES[self.state_dtype]
        rows = self.conv_rows + speculated if self.conv_dim else 0
        return rows * (conv_dim // tp) * model_bytes + self.recurrent // tp * item
