"""One value per request, whichever library made its span."""
