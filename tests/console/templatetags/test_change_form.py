"""The `change_form` tag: view names or explicit URLs, additional attributes, and the CSRF token."""

from __future__ import annotations

from django.template import Context, Template

from tests.support.html import minified


def rendered(tag: str) -> str:
    text = f"{{% load page_frame %}}{tag}<button>Go</button>{{% endchange_form %}}"
    return minified(Template(text).render(Context({"csrf_token": "secret", "odd": '/a/"b"'})))


def test_a_form_posts_to_its_view_with_and_without_scripts() -> None:
    form = rendered("{% change_form 'policies_roll_back' 7 %}")
    assert form.count('"/policies/revisions/7/roll-back/"') == 2
    assert 'value="secret"' in form and "<button>Go</button>" in form


def test_a_given_address_and_attributes_are_escaped() -> None:
    form = rendered("{% change_form address=odd class='row' hidden=True %}")
    assert 'action="/a/&quot;b&quot;"' in form and 'class="row"' in form and " hidden" in form
