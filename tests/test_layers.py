"""Who may import whom: lower layers, or one's own package; plug-in siblings never each other."""

import ast
import pathlib

import pytest

import specjax

ROOT = pathlib.Path(specjax.__file__).parent

# A module or package of specjax -> its layer. A longer name overrides the package it lies in.
LAYERS = {
    "types": 0,
    "request": 1,
    "sampling": 1,
    "processors": 1,
    "cache": 1,
    "trees": 1,
    "sharding": 1,
    "analysis": 1,
    "data": 1,
    "acceptance": 2,
    "draft_length": 2,
    "models": 2,
    "drafters": 3,
    "decoding": 4,
    "decoding.generate": 5,
    "decoding.autoregressive": 5,
    "testing": 5,
    "training": 6,
    "assets": 0,
}
# Packages whose files are interchangeable parts; what they share is named here.
PLUG_INS = {"acceptance": {"chain", "tree_nodes"}, "drafters": {"draft_laws", "head_chain", "last_feature"}}
FILES = sorted(path for path in ROOT.rglob("*.py") if path.parent != ROOT or path.name != "__init__.py")


def module_name(path):
    """``decoding.round`` for specjax/decoding/round.py."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def imports(path):
    """Names of the modules of specjax that a file imports, without the leading ``specjax.``."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import"
            inside = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if is_module(name) else node.module for name in inside]
        else:
            continue
        yield from (name.removeprefix("specjax.") for name in names if name.startswith("specjax."))


def is_module(name):
    path = ROOT.parent.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").exists()


def layer(name):
    return LAYERS.get(name, LAYERS.get(name.split(".")[0]))


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_imports_point_downwards(path):
    name = module_name(path)
    package = name.split(".")[0]
    assert layer(name) is not None, f"specjax/{package} has no layer: name it in LAYERS"
    for imported in imports(path):
        if imported.split(".")[0] == package:
            continue
        assert layer(imported) < layer(name), (
            f"{name} (layer {layer(name)}) imports {imported} ({layer(imported)})"
        )


@pytest.mark.parametrize("package", PLUG_INS)
def test_plug_ins_do_not_know_each_other(package):
    for path in (ROOT / package).glob("*.py"):
        if path.name == "__init__.py":
            continue
        siblings = {name.split(".")[1] for name in imports(path) if name.startswith(f"{package}.")}
        assert siblings <= PLUG_INS[package], f"{path.name} imports its siblings {siblings}"


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_only_models_know_flax_and_nobody_knows_flags(path):
    text = path.read_text()
    roots = {
        (alias.name if isinstance(node, ast.Import) else node.module or "").split(".")[0]
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert not roots & {"absl", "ml_collections", "torch", "transformers"}
    assert "flax" not in roots or module_name(path).startswith("models")


def test_importing_starts_no_backend():
    """In a process of its own: every module imported, no device touched."""
    import subprocess
    import sys

    names = [f"specjax.{module_name(path)}" for path in FILES]
    code = (
        f"import importlib\nfor name in {names!r}: importlib.import_module(name)\n"
        "from jax._src import xla_bridge\nassert not xla_bridge._backends, xla_bridge._backends\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
