"""One rule's source and all that it refers to, gathered from the package's modules into one block of code.

The maths of a rule exists once, in `honestly.rules`. A self-contained file gets a copy in this way: start from a class,
follow every name through the modules of the package, keep what is reached, drop annotations, and import the rest
(NumPy, the standard library). Modules that a rule uses must therefore not define equal names: that is an error which
names both places, and `tests/scaleout` exports every rule that can be exported.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import textwrap
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import ModuleType

PACKAGE = "honestly"
ONE_BLOCK = "the exported rule is one block of code, in which a name has one meaning only, but"


@dataclass
class _Module:
    """The top level of a module: what defines each name."""

    name: str
    definitions: dict[str, ast.stmt] = field(default_factory=dict[str, ast.stmt])
    imports: dict[str, tuple[str, str]] = field(
        default_factory=dict[str, tuple[str, str]]
    )  # local name -> (module, name there or "")

    @classmethod
    def of(cls, module: ModuleType) -> _Module:
        result = cls(module.__name__)
        for statement in ast.parse(inspect.getsource(module)).body:
            if isinstance(statement, ast.FunctionDef | ast.ClassDef):
                result.definitions[statement.name] = statement
            elif isinstance(statement, ast.Assign | ast.AnnAssign):
                targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                for target in targets:
                    for name in ast.walk(target):
                        if isinstance(name, ast.Name):
                            result.definitions[name.id] = statement
            elif isinstance(statement, ast.ImportFrom):
                for alias in statement.names:
                    result.imports[alias.asname or alias.name] = (str(statement.module), alias.name)
            elif isinstance(statement, ast.Import):
                for alias in statement.names:
                    result.imports[alias.asname or alias.name] = (alias.name, "")
        return result


class _Bare(ast.NodeTransformer):
    """Removes annotations, long docstrings and protocols, so the code does not need `typing`."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg]
        for argument in every:
            if argument is not None:
                argument.annotation = None
        self.generic_visit(node)
        _shorten(node)
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        if any(isinstance(base, ast.Name) and base.id == "Protocol" for base in node.bases):
            node.bases, node.body = [], [ast.Pass()]
            return node
        statements = [self._field(part) for part in node.body if not _bare_annotation(part)]
        node.body = [part if isinstance(part, ast.AnnAssign) else self.visit(part) for part in statements] or [
            ast.Pass()
        ]
        _shorten(node)
        # dataclasses look their class's module up, which a program that runs text may not have registered
        node.body.append(ast.Assign([ast.Name("__module__", ast.Store())], ast.Constant("builtins")))
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        """Remove the annotation of a local variable, and a declaration without a value."""
        self.generic_visit(node)
        return None if node.value is None else ast.copy_location(ast.Assign([node.target], node.value), node)

    def _field(self, statement: ast.stmt) -> ast.stmt:
        """A class variable becomes a plain assignment; a dataclass's field keeps an annotation, which it needs."""
        if isinstance(statement, ast.AnnAssign):
            if "ClassVar" in ast.unparse(statement.annotation):
                assert statement.value is not None
                return ast.copy_location(ast.Assign([statement.target], statement.value), statement)
            statement.annotation = ast.Name("object", ast.Load())
        return statement


def _bare_annotation(statement: ast.stmt) -> bool:
    """`name: ClassVar[str]` without a value has no effect at run time."""
    return (
        isinstance(statement, ast.AnnAssign)
        and statement.value is None
        and "ClassVar" in ast.unparse(statement.annotation)
    )


def _shorten(node: ast.FunctionDef | ast.ClassDef) -> None:
    """Keep the first paragraph of a docstring."""
    text = ast.get_docstring(node)
    if text is not None:
        node.body[0] = ast.Expr(ast.Constant(text.split("\n\n")[0]))


def gather(
    entries: list[type], reserved: Collection[str] = (), instead: Mapping[tuple[str, str], str] | None = None
) -> str:
    """Source code of these classes and of everything that they refer to, in an order that can be executed.

    It is one block of code, in which a name has one meaning only: modules that a rule uses must not define
    equal names, nor rename what they import, nor use the names that are `reserved` for the code around the block.
    `instead` has the source of definitions, by module and name, of which the block has another form.

    Raises:
        ValueError: a name has two meanings; the message names it and both places.
    """
    modules: dict[str, _Module] = {}
    done: dict[tuple[str, str], ast.stmt] = {}
    origin: dict[tuple[str, str], ast.stmt] = {}
    order: list[tuple[str, str]] = []
    outside: dict[str, tuple[str, str]] = {}

    def visit(module_name: str, name: str) -> None:
        if module_name not in modules:
            modules[module_name] = _Module.of(importlib.import_module(module_name))
        module = modules[module_name]
        if name in module.imports:
            source, original = module.imports[name]
            if _is_package(source):
                if name != original:
                    raise ValueError(f"{ONE_BLOCK} {module_name} imports {original} as {name}: import it unrenamed")
                visit(source, original)
            elif outside.setdefault(name, (source, original)) != (source, original):
                places = [".".join(filter(None, place)) for place in (outside[name], (source, original))]
                raise ValueError(f"{ONE_BLOCK} {name} is {places[0]} and, in {module_name}, {places[1]}: rename one")
            return
        if name not in module.definitions or (module_name, name) in done:
            return
        original_statement = module.definitions[name]
        if instead is not None and (module_name, name) in instead:
            original_statement = ast.parse(instead[module_name, name]).body[0]
        if isinstance(original_statement, ast.AnnAssign) and "TypeAlias" in ast.unparse(original_statement.annotation):
            return  # a type, which nothing refers to at run time
        twin = next((key for key, other in origin.items() if other is original_statement), None)
        if twin is not None:  # A, B = 1, 2 defines both
            done[module_name, name] = done[twin]
            return
        origin[module_name, name] = original_statement
        statement = _Bare().visit(ast.parse(ast.unparse(original_statement)).body[0])
        done[module_name, name] = statement
        early, late = _references(statement)
        for other in sorted(
            early - {name}
        ):  # needed when the statement itself is executed: bases, decorators, defaults
            visit(module_name, other)
        order.append((module_name, name))
        for other in sorted(late - early - {name}):
            visit(module_name, other)

    for entry in entries:
        visit(entry.__module__, entry.__name__)
    _check_names(order, outside, reserved)
    imports = [
        (f"from {source} import {original}" + (f" as {name}" if name != original else ""))
        if original
        else (f"import {source}" + (f" as {name}" if name != source else ""))
        for name, (source, original) in sorted(outside.items(), key=lambda item: item[1])
    ]
    parts = [ast.unparse(ast.fix_missing_locations(done[key])) for key in order]
    return "\n".join(imports) + "\n\n" + "\n\n".join(parts) + "\n"


def _check_names(
    order: list[tuple[str, str]], outside: Mapping[str, tuple[str, str]], reserved: Collection[str]
) -> None:
    """Raise ValueError if a name would have two meanings in the block."""
    first: dict[str, str] = {}
    for module, name in order:
        if name in first:
            raise ValueError(f"{ONE_BLOCK} {name} is defined in {first[name]} and in {module}: rename one")
        if name in outside:
            source = ".".join(filter(None, outside[name]))
            raise ValueError(f"{ONE_BLOCK} {name} is defined in {module} and elsewhere imported as {source}: rename it")
        if name in reserved:
            raise ValueError(
                f"{ONE_BLOCK} {name}, defined in {module}, is a variable of the exported method: rename it"
            )
        first[name] = module


def _is_package(module: str) -> bool:
    """Whether the source of this module is taken along; all others are imported."""
    return module.split(".")[0] == PACKAGE


def _references(statement: ast.stmt) -> tuple[set[str], set[str]]:
    """Names that must exist when the statement is executed, and names that its functions use when they are called."""
    late: set[str] = set()
    early: set[str] = set()

    def walk(node: ast.AST, inside: bool) -> None:
        if isinstance(node, ast.Name):
            (late if inside else early).add(node.id)
        if isinstance(node, ast.FunctionDef | ast.Lambda):
            outer = [*node.args.defaults, *(d for d in node.args.kw_defaults if d is not None)]
            outer += node.decorator_list if isinstance(node, ast.FunctionDef) else []
            for part in outer:
                walk(part, inside)
            for part in node.body if isinstance(node, ast.FunctionDef) else [node.body]:
                walk(part, True)
            return
        for child in ast.iter_child_nodes(node):
            walk(child, inside)

    walk(statement, False)
    return early, late


def method(name: str, signature: str, doc: str, body: str) -> str:
    """A method of that name with `body` in it, indented for a class."""
    text = f'def {name}({signature}):\n    """{doc}"""\n' + textwrap.indent(body, "    ")
    return textwrap.indent(text, "    ")
